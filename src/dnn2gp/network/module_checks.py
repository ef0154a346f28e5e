"""Checks of the module that a `Network` wraps, with errors that say what to change."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.parameter import is_lazy

from dnn2gp.support.errors import NetworkError, TrainModeWarning, warn_user


def check_module(module: object) -> nn.Module:
    """The module, if its parameters have values and can be replaced."""
    if not isinstance(module, nn.Module):
        form = f"the class {module.__name__}" if isinstance(module, type) else type(module).__name__
        raise NetworkError(
            f"network: expected a torch.nn.Module; got {form}. Pass the trained module, or wrap a function in one."
        )
    if any(isinstance(part, torch.jit.ScriptModule) for part in module.modules()):
        raise NetworkError(
            "network: expected a plain torch.nn.Module; got a TorchScript module, whose weights cannot be replaced. "
            "Pass the module that was scripted or traced."
        )
    if any(type(part).__name__ == "OptimizedModule" and hasattr(part, "_orig_mod") for part in module.modules()):
        raise NetworkError(  # by name, because importing the class takes more than a second
            "network: expected a plain torch.nn.Module; got one that torch.compile wraps, whose backward pass cannot "
            "be repeated. Pass the module that was compiled: network._orig_mod."
        )
    if isinstance(module, nn.DataParallel | nn.parallel.DistributedDataParallel):
        raise NetworkError(
            f"network: expected a module on one device; got {type(module).__name__}, which distributes its examples "
            "over several. Pass network.module."
        )
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        if is_lazy(tensor):
            raise NetworkError(
                f"network: the weight {name!r} of a lazy layer has no shape yet. Call network(inputs) once, and "
                "train the network."
            )
        if tensor.is_meta:
            raise NetworkError(
                f"network: the weight {name!r} is on the meta device and has no values. Load the trained weights "
                "first, e.g. with network.to_empty(device='cpu') and network.load_state_dict(...)."
            )
    return module


def warn_if_train_mode(module: nn.Module) -> None:
    """Warn about layers in train mode that behave differently in eval mode."""
    changing = (part for part in module.modules() if part.training and isinstance(part, _NormBase | _DropoutNd))
    kinds = {type(part).__name__ for part in changing}
    if kinds:
        warn_user(
            "The network is in train mode and has layers that behave differently in that mode "
            f"({', '.join(sorted(kinds))}). dnn2gp evaluates it in eval mode (no dropout, running statistics) and "
            "does not change the mode of your network. To silence this warning, call network.eval() first.",
            TrainModeWarning,
        )


def check_trainable(trainable: Iterable[str], tensors: Mapping[str, Tensor]) -> None:
    """Trainable weights must exist, be finite, and share a dtype (float32 or float64) and a device."""
    names = list(trainable)
    if not names:
        raise NetworkError(
            "network: no weight requires a gradient. Unfreeze at least one: parameter.requires_grad_(True)."
        )
    kinds: dict[str, str] = {}
    for name in names:
        kinds.setdefault(f"{tensors[name].dtype} on {tensors[name].device}", name)
    if len(kinds) > 1 or tensors[names[0]].dtype not in (torch.float32, torch.float64):
        found = ", ".join(f"{kind} ({name!r})" for kind, name in kinds.items())
        raise NetworkError(
            f"network: expected trainable weights of one dtype, float32 or float64, on one device; got {found}. "
            "Use network.float() or network.double(), and network.to(device)."
        )
    for name in names:
        if not tensors[name].isfinite().all():
            raise NetworkError(
                f"network: the weight {name!r} contains NaN or infinity: training has diverged. Train again with a "
                "smaller learning rate, or load an earlier checkpoint."
            )


def check_state(tensors: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> None:
    """Saved weights and buffers must have the names and shapes of the module's."""
    missing, extra = sorted(set(tensors) - set(state)), sorted(set(state) - set(tensors))
    wrong = [n for n in tensors if n in state and tensors[n].shape != state[n].shape]
    kinds = {"not in the file": missing, "only in the file": extra, "with a different shape": wrong}
    found = "; ".join(f"{what}: {names[:5]}" for what, names in kinds.items() if names)
    if found:
        raise NetworkError(
            f"network: its weights and buffers do not match the saved ones: {found}. Build it with the same "
            "arguments as the network that was saved."
        )


def check_tensor(outputs: object) -> Tensor:
    """The outputs, if they are a tensor."""
    if not isinstance(outputs, Tensor):
        raise NetworkError(
            f"network: expected forward to return one tensor; got {type(outputs).__name__}. Wrap the network in a "
            "module whose forward returns the tensor (e.g. the logits)."
        )
    if outputs.is_nested or outputs.layout != torch.strided:
        kind = "nested" if outputs.is_nested else "sparse"
        raise NetworkError(
            f"network: expected forward to return a dense tensor; got a {kind} one. Convert it at the end of forward, "
            "e.g. with outputs.to_dense()."
        )
    return outputs


def check_outputs(outputs: object, count: int, dtype: torch.dtype) -> Tensor:
    """The outputs, if they are finite and have one row per example and the dtype of the weights."""
    outputs = check_tensor(outputs)
    if outputs.ndim == 0 or len(outputs) != count or outputs.numel() == 0:
        raise NetworkError(
            f"network: expected one row of outputs per example, {count} in all, and at least one output; got shape "
            f"{tuple(outputs.shape)}. Look for squeeze(), a transpose or a mean over the batch in forward."
        )
    if outputs.dtype != dtype:
        raise NetworkError(
            f"network: expected outputs in the dtype of the weights, {dtype}; got {outputs.dtype}. Return outputs of "
            "that dtype, and call dnn2gp outside of torch.autocast."
        )
    if not outputs.isfinite().all():
        raise NetworkError(
            "network: expected finite outputs; got NaN or infinity for the given inputs. Check its frozen weights "
            "and buffers, and the scale of the inputs."
        )
    return outputs
