"""After the backward: gradients summed, reduced, clipped, tied copies, and the optimizer's step."""
