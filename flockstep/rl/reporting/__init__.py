"""How a training is seen: rows, pictures, films, TensorBoard, callbacks, evaluation."""
