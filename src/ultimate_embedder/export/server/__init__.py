"""Upload points to a Qdrant server. `upload.py` tells the story; modules are imported on first use."""
