"""What backends that run ONNX share: the export, and what a runtime's layers have to do with the file's nodes."""
