"""Names of the same package: imports, distributions, conda packages, system packages."""

from __future__ import annotations

#: Distributions by import name, if they differ.
IMPORTS = {
    "Bio": "biopython",
    "Crypto": "pycryptodome",
    "IPython": "ipython",
    "Levenshtein": "levenshtein",
    "MySQLdb": "mysqlclient",
    "OpenGL": "PyOpenGL",
    "OpenSSL": "pyOpenSSL",
    "PIL": "pillow",
    "attr": "attrs",
    "bs4": "beautifulsoup4",
    "cv2": "opencv-python-headless",
    "dateutil": "python-dateutil",
    "docx": "python-docx",
    "dotenv": "python-dotenv",
    "faiss": "faiss-cpu",
    "fitz": "PyMuPDF",
    "git": "GitPython",
    "github": "PyGithub",
    "google.protobuf": "protobuf",
    "googleapiclient": "google-api-python-client",
    "grpc": "grpcio",
    "haystack": "haystack-ai",
    "hydra": "hydra-core",
    "imblearn": "imbalanced-learn",
    "jose": "python-jose",
    "jwt": "PyJWT",
    "kafka": "kafka-python",
    "lightning_fabric": "lightning",
    "magic": "python-magic",
    "markdown": "Markdown",
    "mpl_toolkits": "matplotlib",
    "nacl": "PyNaCl",
    "osgeo": "GDAL",
    "pl_bolts": "lightning-bolts",
    "pptx": "python-pptx",
    "psycopg2": "psycopg2-binary",
    "pkg_resources": "setuptools",
    "pywt": "PyWavelets",
    "pylab": "matplotlib",
    "pytorch_lightning": "pytorch-lightning",
    "rest_framework": "djangorestframework",
    "ruamel": "ruamel.yaml",
    "sentence_transformers": "sentence-transformers",
    "serial": "pyserial",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
    "sklearn_crfsuite": "sklearn-crfsuite",
    "slugify": "python-slugify",
    "socks": "PySocks",
    "speech_recognition": "SpeechRecognition",
    "telegram": "python-telegram-bot",
    "tensorflow_datasets": "tensorflow-datasets",
    "tensorflow_hub": "tensorflow-hub",
    "tensorflow_probability": "tensorflow-probability",
    "torch_geometric": "torch-geometric",
    "umap": "umap-learn",
    "usb": "pyusb",
    "win32api": "pywin32",
    "yaml": "PyYAML",
    "zmq": "pyzmq",
}

#: System packages (Debian, Ubuntu) that a module needs in addition to its wheel.
SYSTEM_OF_IMPORT = {
    "graphviz": "graphviz",
    "magic": "libmagic1",
    "pydub": "ffmpeg",
    "pytesseract": "tesseract-ocr",
    "pyaudio": "libportaudio2",
    "sounddevice": "libportaudio2",
    "git": "git",
}

#: Packages of conda's public channels that are the PyPI project of the same name. Equal names prove
#: nothing (``nodejs``, ``jq``, ``star``): a name stands here only if both come from one project.
_SAME_PROJECT = """
    absl-py accelerate addict aiohttp albumentations altair anndata arviz astropy attrs
    audioread autopep8 av ax-platform azure-storage-blob beautifulsoup4 biopython black bokeh
    boto3 botocore botorch bottleneck cachetools cartopy catboost cattrs certifi cffi
    charset-normalizer click cloudpickle colorama configargparse cryptography cvxopt cvxpy
    cython dash datasets deepspeed diffusers dill distributed docopt easydict einops emcee
    evaluate faiss-cpu fastai fastapi fastcore fastparquet filelock fiona fire flake8 flask flax
    fsspec ftfy future gcsfs gdown gensim geopandas google-cloud-storage gpytorch gradio grpcio
    gunicorn gym gymnasium h5py hdbscan html5lib httpx huggingface_hub hydra-core hyperopt idna
    imageio imageio-ffmpeg imbalanced-learn ipdb ipykernel ipython ipywidgets isort jax jaxlib
    jinja2 joblib jsonlines jsonschema jupyter jupyterlab jupytext keras kornia langchain
    leidenalg librosa lightgbm lightning lime loompy louvain lxml markdown matplotlib mlflow mne
    mock monai more-itertools moviepy multiprocess munch mypy nbconvert nbformat netcdf4
    networkx nibabel nilearn nltk notebook numba numexpr numpy nvitop omegaconf open3d openai
    openpyxl optax optuna orjson packaging pandas papermill pathos pexpect pillow pip plotly
    pre-commit prettytable protobuf psutil pulp pyarrow pycocotools pycodestyle pydantic pydicom
    pydot pydub pylint pymysql pynvml pyproj pyro-ppl pytest pytest-cov python-dateutil
    python-dotenv python-levenshtein pytorch-ignite pytorch-lightning pytz pyvista pyyaml pyzmq
    rapidfuzz rasterio rdkit regex requests rich rouge-score ruamel.yaml ruff s3fs sacrebleu
    sacremoses scanpy scikit-image scikit-learn scikit-optimize scikit-video scipy seaborn
    sentence-transformers sentencepiece setuptools shap shapely simpleitk six spacy sphinx
    sqlalchemy statsmodels streamlit sympy tabulate tensorboard tensorboardx tensorflow
    tensorflow-cpu tensorflow-datasets tensorflow-hub tensorflow-probability termcolor
    terminaltables tifffile tiktoken timm tokenizers toml tomli torchaudio torchmetrics
    torchtext torchvision tqdm transformers trimesh typer typing-extensions typing_extensions
    ujson umap-learn unidecode urllib3 uvicorn wandb wheel xarray xgboost xlrd xlsxwriter yacs
    yapf zarr
"""

#: PyPI requirements by conda package, if both are the same project.
CONDA_TO_PYPI = {
    **{name: name for name in _SAME_PROJECT.split()},
    "black-jupyter": "black[jupyter]",
    "dask": "dask[complete]",
    "dask-core": "dask",
    "matplotlib-base": "matplotlib",
    "msgpack-python": "msgpack",
    "opencv": "opencv-python-headless",
    "psycopg2": "psycopg2-binary",
    "py-opencv": "opencv-python-headless",
    "py-xgboost": "xgboost",
    "pysoundfile": "soundfile",
    "pytables": "tables",
    "python-annoy": "annoy",
    "python-blosc": "blosc",
    "python-graphviz": "graphviz",
    "python-igraph": "igraph",
    "python-kaleido": "kaleido",
    "python-lmdb": "lmdb",
    "pytorch": "torch",
    "ray-core": "ray",
    "ray-default": "ray[default]",
    "ray-tune": "ray[tune]",
    "redis-py": "redis",
    "seaborn-base": "seaborn",
    "uvicorn-standard": "uvicorn[standard]",
}

#: The public channels; names of other channels prove nothing.
CONDA_CHANNELS = {
    *("conda-forge", "defaults", "nodefaults", "main", "anaconda", "pkgs/main", "pkgs/free"),
    *("pytorch", "huggingface", "bioconda", "nvidia"),
}

#: System packages (Debian, Ubuntu) by conda package, for programs not written in Python.
CONDA_SYSTEM = {
    "bzip2": "bzip2",
    "cmake": "cmake",
    "curl": "curl",
    "cxx-compiler": "g++",
    "c-compiler": "gcc",
    "ffmpeg": "ffmpeg",
    "gcc": "gcc",
    "git": "git",
    "git-lfs": "git-lfs",
    "graphviz": "graphviz",
    "gxx": "g++",
    "htop": "htop",
    "make": "make",
    "ninja": "ninja-build",
    "openjdk": "default-jdk-headless",
    "openmpi": "openmpi-bin",
    "openssh": "openssh-client",
    "pandoc": "pandoc",
    "parallel": "parallel",
    "pkg-config": "pkg-config",
    "ripgrep": "ripgrep",
    "rsync": "rsync",
    "sqlite": "sqlite3",
    "tesseract": "tesseract-ocr",
    "tmux": "tmux",
    "unzip": "unzip",
    "vim": "vim",
    "wget": "wget",
    "zip": "zip",
}
