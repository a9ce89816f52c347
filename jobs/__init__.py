"""Training functions that come with TrainFlow, each beside the YAML file that runs it."""
