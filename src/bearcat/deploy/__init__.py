"""Trained models: the folder, prediction, ONNX, the server."""
