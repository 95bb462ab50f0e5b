"""Trackers of experiments: Weights & Biases, MLflow and TensorBoard, in one run over all runs of a job."""
