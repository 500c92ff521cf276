"""Shape annotations are checked while the tests run; production code pays nothing.

`regard.core`, `regard.bias` and `regard.functional` are left out: they check shapes themselves, at run time and with
errors that say the way out, and the tests look at those errors.
"""

import torch
from jaxtyping import install_import_hook

CHECKED = ["regard.layer", "regard.position", "regard.memory", "regard.models", "regard.feature_maps", "regard.masks"]
hook = install_import_hook(CHECKED, "beartype.beartype")
torch.set_num_threads(1)
