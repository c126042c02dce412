"""What commands import, imported once, by the server whose forks they are (commands.py)."""
# ruff: noqa: F401

import gc

import jinja2
import matplotlib.backends.backend_agg
import matplotlib.backends.backend_svg
import matplotlib.figure
import matplotlib.font_manager
import onnxruntime
import onnxscript
import pydantic
import rich.progress
import rich.table
import scipy.optimize
import scipy.signal
import scipy.stats
import sklearn.discriminant_analysis
import sklearn.neighbors  # with pandas, in a second and a half
import torch._dynamo  # torch.optim imports it, in two seconds

import bearcat.adaptation.adapt
import bearcat.bench.execute
import bearcat.cli.recordings
import bearcat.cli.train
import bearcat.cli.watch
import bearcat.deploy.diagnose
import bearcat.deploy.serve
import bearcat.diagnosis.physics
import bearcat.report.pages
import bearcat.watch.watching

gc.freeze()  # a collection in a fork would touch, and so copy, the memory of all of it
