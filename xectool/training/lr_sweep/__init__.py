"""The sweep of the learning rate: the steps of a run at several rates, from the same weights over the same batches."""
