"""Bring a run's curves to TensorBoard, Weights & Biases and MLflow."""
