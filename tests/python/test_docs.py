"""What `help` says: every argument, result and error of every public function and class."""

import importlib
import inspect
import re
import types

import pytest

MODULES = {
    "scanrnn": None,
    "scanrnn.cells": None,
    "scanrnn.debug": None,
    "scanrnn.torch": "torch",
    "scanrnn.jax": "jax",
    "scanrnn.jax.weights": "jax",
    "scanrnn.jax.nnx": "flax",
}
SECTION = re.compile(r"^(Args|Attributes|Returns|Raises|Example):\n", re.MULTILINE)
ENTRY = re.compile(r"^    \**(\w+): ", re.MULTILINE)


def public(module):
    names = getattr(module, "__all__", None) or [n for n in vars(module) if n[0] != "_"]
    for name in names:
        value = getattr(module, name)
        of_ours = getattr(value, "__module__", "").startswith("scanrnn")
        if of_ours and (inspect.isfunction(value) or inspect.isclass(value)):
            yield name, value


def functions(name, value):
    """A function, or what a class has: its constructor, documented by it, and its methods."""
    if inspect.isfunction(value):
        yield name, value, value.__doc__
        return
    if "__init__" in vars(value) and not hasattr(value, "__dataclass_fields__"):
        yield name, value.__init__, value.__doc__
    for own, method in vars(value).items():
        if own[0] != "_" and isinstance(method, types.FunctionType):
            yield f"{name}.{own}", method, method.__doc__


@pytest.mark.parametrize("module", MODULES)
def test_every_argument_result_and_error_is_documented(module):
    if MODULES[module]:
        pytest.importorskip(MODULES[module])
    seen = 0
    for name, value in public(importlib.import_module(module)):
        assert inspect.getdoc(value), name
        for called, function, doc in functions(name, value):
            signature = inspect.signature(function)
            parameters = [n for n in signature.parameters if n != "self"]
            _, *found = SECTION.split(inspect.cleandoc(doc))
            sections = dict(zip(found[::2], found[1::2], strict=True))
            assert ENTRY.findall(sections.get("Args", "")) == parameters, called
            if parameters and not called.endswith("highway"):  # else some arguments are wrong
                assert sections.get("Raises"), called
            if signature.return_annotation not in ("None", None):
                assert sections.get("Returns") or not parameters, called
            assert not re.search(r"\{(main|scan|fn|saved|name)\}", doc), called
            seen += 1
    assert seen


def test_a_parameter_of_which_nothing_is_said_is_an_error():
    from scanrnn import _docs

    def gilr(f, z, oops):
        """A function."""

    with pytest.raises(KeyError, match="oops"):
        _docs.documented(_docs.NUMPY)(gilr)


def test_what_a_docstring_says_itself_counts():
    from scanrnn import _docs

    def gilr(f, z=None):
        """A function.

        More of it.

        Args:
            z: another thing,
                over two lines.
        """

    doc = _docs.documented(_docs.JAX)(gilr).__doc__
    assert doc.startswith("A function.\n\n    f'_t = sigmoid(f_t)\n")
    assert "\n\nMore of it.\n\nArgs:\n    f: forget gates before the sigmoid, (batch" in doc
    assert "\n    z: another thing,\n        over two lines.\n\nReturns:\n    h, with f's" in doc
    assert all(len(line) <= 96 for line in doc.splitlines())


def test_docs_of_a_cell_name_the_cores_inputs():
    """One statement of a cell's arguments in C++, for errors, and one here, for help."""
    from scanrnn import _cell_call, _docs, _nonlinear, cells

    known = [v for m in (cells, _nonlinear) for v in vars(m).values()]
    for function in (v for v in known if isinstance(v, _cell_call.Function)):
        text = _docs.CELLS[function.name]
        named = {*text.inputs, *text.vectors, *text.states}
        assert named >= {n for n in function.inputs if n is not None}, function
        assert {*text.vectors} >= {n for n in function.vectors if n is not None}, function
        assert {*text.states} == {*function.states}, function
        assert text.main in (function.main, function.inputs[0]), function
