"""The configuration: typed schemas, loading them from Hydra's nodes, and checks of values.

May import terminal, machine and errors. A new key is a field in schemas.py and a value in conf/.
"""

from posbench.config import omegaconf_errors as omegaconf_errors  # says how its errors read
from posbench.config.loading import known_keys as known_keys
from posbench.config.loading import known_types as known_types
from posbench.config.loading import literal as literal
from posbench.config.loading import load as load
from posbench.config.loading import plain as plain
from posbench.config.schemas import NOT_ARGUMENTS as NOT_ARGUMENTS
from posbench.config.schemas import SCHEMAS as SCHEMAS
from posbench.config.schemas import ClaimsCommand as ClaimsCommand
from posbench.config.schemas import Config as Config
from posbench.config.schemas import DescribeCommand as DescribeCommand
from posbench.config.schemas import DescribeConfig as DescribeConfig
from posbench.config.schemas import DeviceConfig as DeviceConfig
from posbench.config.schemas import EvalChanges as EvalChanges
from posbench.config.schemas import EvalCommand as EvalCommand
from posbench.config.schemas import EvalConfig as EvalConfig
from posbench.config.schemas import MachineChanges as MachineChanges
from posbench.config.schemas import ModelConfig as ModelConfig
from posbench.config.schemas import OptimConfig as OptimConfig
from posbench.config.schemas import ParameterGroup as ParameterGroup
from posbench.config.schemas import PublishedCommand as PublishedCommand
from posbench.config.schemas import ReportCommand as ReportCommand
from posbench.config.schemas import ReportConfig as ReportConfig
from posbench.config.schemas import ReproCommand as ReproCommand
from posbench.config.schemas import ReproConfig as ReproConfig
from posbench.config.schemas import RunConfig as RunConfig
from posbench.config.schemas import RuntimeConfig as RuntimeConfig
from posbench.config.schemas import SpeedCommand as SpeedCommand
from posbench.config.schemas import SpeedConfig as SpeedConfig
from posbench.config.schemas import TrackingChanges as TrackingChanges
from posbench.config.schemas import TrackingConfig as TrackingConfig
from posbench.config.schemas import TrainConfig as TrainConfig
from posbench.config.schemas import TuneCommand as TuneCommand
from posbench.config.schemas import TuneConfig as TuneConfig
