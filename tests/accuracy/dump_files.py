"""Small dumps and archives on disk, as msprobe and NumPy write them."""

import json

import numpy as np


def npz(path, **arrays):
    """Write an archive, its folders too."""
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, **arrays)
    return path


def item(array=None, name=None, **said):
    """Describe a tensor as dump.json does, with the statistics of its elements."""
    found = {"type": "torch.Tensor", "dtype": "torch.float32", "requires_grad": False}
    if array is not None:
        wide = np.asarray(array, np.float64)
        found |= {"shape": list(wide.shape), "dtype": f"torch.{np.asarray(array).dtype}"}
        with np.errstate(all="ignore"):
            values = wide.max(), wide.min(), wide.mean(), np.linalg.norm(wide)
        found |= dict(zip(("Max", "Min", "Mean", "Norm"), map(float, values), strict=True))
    if name:
        found["data_name"] = name
    return found | said


def dump(folder, operators, step="step0", rank="rank0", task="statistics"):
    """Write a dump: operators are names to ([inputs], [outputs]), arrays (kept as files in tensor mode) or items."""
    at = folder / step / rank
    (at / "dump_tensor_data").mkdir(parents=True)

    def one(value, name):
        if not isinstance(value, (np.ndarray, np.generic)):
            return value
        if task != "tensor":
            return item(value)
        np.save(at / "dump_tensor_data" / f"{name}.npy", value)
        return item(value, f"{name}.npy")

    data = {}
    for api, (inputs, outputs) in operators.items():
        lists = [
            [one(v, f"{api}.{part}.{i}") for i, v in enumerate(values)]
            for part, values in (("input", inputs), ("output", outputs))
        ]
        data[api] = {"input_args": lists[0], "input_kwargs": {}, "output": lists[1]}
    text = {
        "task": task,
        "level": "L1",
        "framework": "pytorch",
        "dump_data_dir": "dump_tensor_data",
        "data": data,
    }
    (at / "dump.json").write_text(json.dumps(text))
    return folder
