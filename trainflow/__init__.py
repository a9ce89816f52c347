"""TrainFlow: distributed training on Ray that takes failures as a normal event."""
