"""Put dashboards, alerts and marks into a Grafana, over its HTTP API."""
