"""What runs on nodes: measures GPUs, attributes their draw to jobs, holds leased power limits, and always gives them back."""
