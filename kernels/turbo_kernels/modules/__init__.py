"""Layers over `turbo_kernels.ops`, with the parameters and state_dicts of the torch layers that they stand in for."""

from turbo_kernels.modules.grouped import GroupedLinear
from turbo_kernels.modules.linear import FP8Config, Linear, LinearFP8
from turbo_kernels.modules.mlp import SwiGLUMLP
from turbo_kernels.modules.norm import RMSNorm

__all__ = ["FP8Config", "GroupedLinear", "Linear", "LinearFP8", "RMSNorm", "SwiGLUMLP"]
