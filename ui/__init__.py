"""The operator's console: a Streamlit page that speaks HTTP to the control plane and knows nothing else of it."""
