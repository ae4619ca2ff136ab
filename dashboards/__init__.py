"""Dashboards and alerts as code, and how they come into a Grafana. Knows no server of Stelae's."""
