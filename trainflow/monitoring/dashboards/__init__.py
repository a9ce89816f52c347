"""Dashboards of Grafana, as code: each panel asks a question of the table of metrics. Pure."""
