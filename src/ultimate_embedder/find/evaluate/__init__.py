"""What each way to search an output is worth, by queries with judgements. `run.py` tells the story."""
