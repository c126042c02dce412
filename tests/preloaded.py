"""What commands import, imported once, by the process whose forks they are (tests/commands.py)."""
# ruff: noqa: F401

import gc
import logging
import os
from functools import cache
from unittest import mock

import jinja2
import matplotlib.backends.backend_agg
import matplotlib.backends.backend_svg
import matplotlib.figure
import matplotlib.font_manager
import onnxruntime
import onnxscript
import PIL.Image
import pydantic
import rich.progress
import rich.table
import scipy.optimize
import scipy.signal
import scipy.stats
import sklearn.discriminant_analysis
import sklearn.neighbors  # with pandas, in a second and a half
import torch._dynamo  # torch.optim imports it, in two seconds
import torch.export._trace
import torch.onnx._internal.exporter._core
from torch.onnx._internal.exporter._registration import ONNXRegistry

import bearcat.cli.bench
import bearcat.cli.data
import bearcat.cli.model
import bearcat.cli.train
import bearcat.deploy.predict
import bearcat.deploy.serve
import bearcat.diagnosis.physics
import bearcat.methods.formulas
import bearcat.report.pages
import bearcat.runs.adapt
import bearcat.runs.execute
import bearcat.watch.watching
from bearcat.deploy.model import OPSET
from bearcat.watch import schema

# The table of operators that torch.onnx makes anew for every graph, in a second: made once.
mock.patch.object(ONNXRegistry, "from_torchlib", staticmethod(cache(ONNXRegistry.from_torchlib))).start()
logging.disable()  # it speaks of packages that no graph here needs
ONNXRegistry.from_torchlib(opset_version=OPSET)
logging.disable(logging.NOTSET)

# Files of tests need not outlast a power cut, and waiting for the disk takes milliseconds for each of thousands.
mock.patch.object(os, "fsync", os.fstat).start()
SYNCHRONOUS = schema.SYNCHRONOUS
mock.patch.object(schema, "SYNCHRONOUS", "OFF").start()

bearcat.cli._command_line()

gc.freeze()  # a collection in a fork would touch, and so copy, the memory of all of it
