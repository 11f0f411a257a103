"""Whatever is wrong with a model folder, the error says what, and what to do."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from pagedlab.errors import ModelError
from pagedlab.model.loading import WEIGHTS, load_model


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(WEIGHTS / "quill", tmp_path / "copy"))


def change_config(folder: Path, **change: object) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))


def test_a_folder_loads_like_the_shipped_name(folder: Path) -> None:
    by_name, by_folder = load_model("quill"), load_model(folder)
    assert (by_name.name, by_folder.name) == ("quill", "copy")
    for name, tensor in by_name.model.checkpoint().items():
        assert torch.equal(tensor, by_folder.model.checkpoint()[name])


def test_a_model_in_several_files_loads_too(folder: Path) -> None:
    whole = load_model(folder).model.checkpoint()
    tensors = load_file(folder / "model.safetensors")
    names = sorted(tensors)
    (folder / "model.safetensors").unlink()
    for part in range(2):
        save_file({n: tensors[n] for n in names[part::2]}, folder / f"model-{part + 1:05}-of-00002.safetensors")
    assert all(torch.equal(tensor, whole[name]) for name, tensor in load_model(folder).model.checkpoint().items())


@pytest.mark.parametrize("dtype", [None, "float32", torch.float32, "float64", torch.float64, "bfloat16"])
def test_the_dtype_is_the_one_asked_for(dtype: str | torch.dtype | None) -> None:
    expected = {"None": torch.float32}.get(str(dtype)) or getattr(torch, str(dtype).removeprefix("torch."))
    loaded = load_model(dtype=dtype)
    assert {parameter.dtype for parameter in loaded.model.parameters()} == {expected}
    assert not any(parameter.requires_grad for parameter in loaded.model.parameters())
    assert not loaded.model.training


def test_an_unknown_name_lists_what_there_is() -> None:
    with pytest.raises(ModelError, match=r"no model 'quil'.*\(quill\).*config\.json"):
        load_model("quil")


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="nowhere"):
        load_model(tmp_path / "nowhere")


def test_a_folder_without_config_is_no_model_folder(folder: Path) -> None:
    (folder / "config.json").unlink()
    with pytest.raises(ModelError, match=r"no config\.json"):
        load_model(folder)


@pytest.mark.parametrize(
    ("text", "message"),
    [("{", "is not JSON"), ("[]", "holds a list"), ("{}", "lacks vocab_size, hidden_size"), ("\xff", "not JSON")],
)
def test_a_config_that_is_none_is_refused(folder: Path, text: str, message: str) -> None:
    (folder / "config.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(ModelError, match=message):
        load_model(folder)


def test_a_config_that_no_model_can_have_is_refused(folder: Path) -> None:
    change_config(folder, num_attention_heads=5)
    with pytest.raises(ModelError, match="5 query heads cannot share"):
        load_model(folder)


def test_a_setting_of_the_wrong_type_is_refused(folder: Path) -> None:
    change_config(folder, num_attention_heads="6")
    with pytest.raises(ModelError, match="num_attention_heads is '6', a str"):
        load_model(folder)


def test_another_vocabulary_is_refused(folder: Path) -> None:
    change_config(folder, vocab_size=32000)
    with pytest.raises(ModelError, match="vocabulary of 32000"):
        load_model(folder)


def test_a_folder_without_weights_is_refused(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelError, match=r"no \*\.safetensors file"):
        load_model(folder)


@pytest.mark.parametrize("size", [0, 5, 1000, 2_000_000])
def test_a_file_cut_short_is_refused(folder: Path, size: int) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:size])
    with pytest.raises(ModelError, match="damaged or cut short"):
        load_model(folder)


def test_weights_of_another_shape_are_refused(folder: Path) -> None:
    change_config(folder, intermediate_size=512)
    with pytest.raises(ModelError, match=r"gate_proj.*\(480, 192\).*\(512, 192\)"):
        load_model(folder)


def test_weights_of_fewer_layers_are_refused(folder: Path) -> None:
    change_config(folder, num_hidden_layers=6)
    with pytest.raises(ModelError, match=r"lacks model\.layers\.5.* and 6 more"):
        load_model(folder)


@pytest.mark.parametrize("dtype", ["float16", "int8", torch.int64, "floaty"])
def test_a_dtype_it_cannot_compute_in_is_refused(dtype: str | torch.dtype) -> None:
    with pytest.raises(ModelError, match="float32, bfloat16, float64"):
        load_model(dtype=dtype)


def test_an_unknown_device_is_refused() -> None:
    with pytest.raises(ModelError, match="give 'cpu' or 'cuda'"):
        load_model(device="abacus")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_refused() -> None:
    with pytest.raises(ModelError, match="torch sees no GPU"):
        load_model(device="cuda")
