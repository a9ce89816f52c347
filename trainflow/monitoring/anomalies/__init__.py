"""Tell what is wrong with a loss or a gradient norm. Pure: a state and a step in, a state out."""
