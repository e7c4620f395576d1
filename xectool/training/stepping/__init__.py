"""One step of training or evaluation, the parts it is made of, and the state it moves."""
