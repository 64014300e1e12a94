"""What a policy would have saved: job and signal traces, a virtual year, and the report of it."""
