"""From the layers or kernels of a profile to rows, a tree of modules, a roofline and a graph."""
