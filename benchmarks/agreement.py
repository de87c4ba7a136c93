"""Whether every backend here gives the right answer, for eight models of all kinds, in fp32 on the CPU.

Prints each case's relative L2 error against eager PyTorch. A case that is wrong, or did not run, is named at the end
and makes the exit code 1.
"""

from __future__ import annotations

import sys
import tempfile

import inferlens
from inferlens.views.records import records_document
from inferlens.views.renderers import render

MODELS = (
    "torchvision:alexnet", "torchvision:mobilenet_v2", "torchvision:resnet18", "torchvision:resnet50",
    "torchvision:vit_b_16", "inferlens:resnet34", "transformers:bert", "timm:convnext_atto",
)  # fmt: skip
BACKENDS = "pytorch,torchscript:all,torch_compile,onnxruntime:cpu,openvino"


def main() -> None:
    """Runs the cases and prints a table per model."""
    with tempfile.TemporaryDirectory() as output:
        records = inferlens.bench(list(MODELS), backend=BACKENDS, iterations=5, warmup=2, device="cpu", output=output)
    sys.stdout.write(render(records_document(records), "markdown") + "\n")
    bad = [record for record in records if not (record.status == "ok" and record.agreement and record.agreement.agrees)]
    for record in bad:
        why = record.reason or (record.agreement.reason if record.agreement else "")
        sys.stdout.write(f"{record.model.name} {record.case.label}: {record.status} {why}\n")
    if any(record.status != "unsupported" for record in bad):
        sys.exit(1)


if __name__ == "__main__":
    main()
