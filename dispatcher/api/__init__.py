"""The HTTP face of the control plane: Ray's Jobs API, our own /v1, webhooks, health and metrics."""
