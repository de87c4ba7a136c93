"""Cases, their tensors, a plan and its budget, and the words that name them."""
