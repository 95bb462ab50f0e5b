"""Training data: the order of the samples, their split over the ranks, and the loaders that deliver them."""
