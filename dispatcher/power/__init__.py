"""The control plane's side of GPU power: agents that are connected, orders to them, and what their measurements come to."""
