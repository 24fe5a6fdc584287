"""Where it went wrong first: forward, backward or optimizer.

``locate`` and ``first_divergence`` answer. They ask ``own`` (checks of a side by itself), ``gradients`` (sums,
reductions, norm, tied copies, the optimizer's step) and ``walk`` (golden's graph, operator by operator).
"""
