"""What a trained policy becomes for others: a model card, a GGUF file, a repository of the Hugging Face hub."""
