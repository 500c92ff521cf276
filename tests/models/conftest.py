"""Every causal mechanism of the catalog, with the first option set that it offers for checks, as `causal_spec`."""

import pytest

from regard import catalog
from regard.specs import Spec


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "causal_spec" in metafunc.fixturenames:
        specs = [str(Spec(name, catalog.resolve(name)[0].samples[0])) for name in catalog.names(supports=["causal"])]
        metafunc.parametrize("causal_spec", [spec for spec in specs if not catalog.describe(spec).leaks])
