"""Where samples come from: packing text, the order of samples, and who reads which."""
