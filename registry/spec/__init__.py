"""Frozen values that travel: the JSON column, the wire body and the manifest are these, and exist once.

Everything above imports them from here; none knows of tensors, SQL or HTTP. One file a noun.
"""

from registry.spec.adapter import (
    BaseEntry,
    BaseKind,
    BaseShape,
    Card,
    EmbeddingSource,
    FileSource,
    InitSource,
    Manifest,
    Provenance,
    Quantization,
    SampleReport,
    SampleSource,
    Unit,
)
from registry.spec.config import AdapterConfig
from registry.spec.decimals import WEIGHT_PLACES, canonical_decimal, canonical_weights, weights_by_digest
from registry.spec.frozen import Frozen, Words
from registry.spec.mixing import (
    AlignMixing,
    AutoMixing,
    AverageMixing,
    ConcatMixing,
    DareMixing,
    MergeMixing,
    Mixing,
    MixingRequest,
    RecompressMixing,
    SlerpMixing,
    TiesMixing,
)
from registry.spec.recipe import (
    Cooked,
    CookRequest,
    Evidence,
    HandRecipe,
    MixReport,
    Recipe,
    RecipeIngredient,
    WeightedRef,
)
from registry.spec.score import BaselineReport, PassageScore, PerplexityReport, Verification
from registry.spec.search import Effort, Search, Trial, Way
from registry.spec.selection import (
    CosineSpec,
    EncoderName,
    GmmSpec,
    Ingredient,
    LeftOut,
    PoolRequest,
    PoolSpec,
    PosteriorSpec,
    Selection,
    SelectOptions,
    SelectorSpec,
    UniformSpec,
)
from registry.spec.structures.bank import BankConfig
from registry.spec.structures.bottleneck import BottleneckConfig
from registry.spec.structures.fusion import FusionConfig
from registry.spec.structures.lora import LoraConfig, LoraGroup, LoraModule
from registry.spec.structures.prefix import PrefixConfig
from registry.spec.structures.pruned import MaskRule, Pruned, PruningScore
from registry.spec.structures.structure import HeadConfig, without_none
from registry.spec.structures.union import UnionConfig
from registry.spec.tuning import Tuned, Tuning, TuningOptions, TuningReport, TuningRequest, TuningSetting
from registry.spec.unions import UNION_MEMBERS
from registry.spec.weighing import Screened, StoredAdapter, WeighedCandidate, Weighing, WeighingRequest

__all__ = [
    "UNION_MEMBERS",
    "WEIGHT_PLACES",
    "AdapterConfig",
    "AlignMixing",
    "AutoMixing",
    "AverageMixing",
    "BankConfig",
    "BaseEntry",
    "BaseKind",
    "BaseShape",
    "BaselineReport",
    "BottleneckConfig",
    "Card",
    "ConcatMixing",
    "CookRequest",
    "Cooked",
    "CosineSpec",
    "DareMixing",
    "Effort",
    "EmbeddingSource",
    "EncoderName",
    "Evidence",
    "FileSource",
    "Frozen",
    "FusionConfig",
    "GmmSpec",
    "HandRecipe",
    "HeadConfig",
    "Ingredient",
    "InitSource",
    "LeftOut",
    "LoraConfig",
    "LoraGroup",
    "LoraModule",
    "Manifest",
    "MaskRule",
    "MergeMixing",
    "MixReport",
    "Mixing",
    "MixingRequest",
    "PassageScore",
    "PerplexityReport",
    "PoolRequest",
    "PoolSpec",
    "PosteriorSpec",
    "PrefixConfig",
    "Provenance",
    "Pruned",
    "PruningScore",
    "Quantization",
    "Recipe",
    "RecipeIngredient",
    "RecompressMixing",
    "SampleReport",
    "SampleSource",
    "Screened",
    "Search",
    "SelectOptions",
    "Selection",
    "SelectorSpec",
    "SlerpMixing",
    "StoredAdapter",
    "TiesMixing",
    "Trial",
    "Tuned",
    "Tuning",
    "TuningOptions",
    "TuningReport",
    "TuningRequest",
    "TuningSetting",
    "UniformSpec",
    "UnionConfig",
    "Unit",
    "Verification",
    "Way",
    "WeighedCandidate",
    "Weighing",
    "WeighingRequest",
    "WeightedRef",
    "Words",
    "canonical_decimal",
    "canonical_weights",
    "weights_by_digest",
    "without_none",
]
