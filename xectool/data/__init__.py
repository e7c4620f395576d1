"""From ROOT files to batches: the data plan, the loader, selection and weights."""
