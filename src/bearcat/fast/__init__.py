"""Many runs at once: layers that hold a stack of runs, their batches, and kernels for GPUs and CPUs.

>>> layer = StackedDense(runs=2, inputs=16, outputs=3)
>>> layer(torch.zeros(2, 8, 16)).shape
torch.Size([2, 8, 3])
"""

from bearcat.fast.stacked import Randomness, StackedDense, uniform

__all__ = ["Randomness", "StackedDense", "uniform"]
