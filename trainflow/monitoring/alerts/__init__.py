"""What is told of a run that needs somebody, as rules of Prometheus and of Grafana. Pure."""
