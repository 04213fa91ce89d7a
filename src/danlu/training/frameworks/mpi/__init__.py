"""MPIJob in its two versions: the training operator's and the MPI operator's."""

from danlu.training.frameworks.mpi.v1 import FRAMEWORK as FRAMEWORK
