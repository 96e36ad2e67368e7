"""Where figures go besides the JSONL file: Prometheus, TensorBoard, Weights & Biases, MLflow, trackio."""
