"""The options of the PopART program (resnet_main.py) and of its synthetic benchmark."""

from conveyor.dialects.table import Table, row

# fmt: off
SIZES = ("8", "14", "20", "32", "44", "56", "110", "18", "34", "50", "101", "152", "x50")
PLACEMENT = "it steers the original hardware"

ROWS = (
    row("--dataset", "upper", "CIFAR-10", choices=("IMAGENET", "CIFAR-10", "CIFAR-100"), ours="`--data`", about="CIFAR-10"),
    row("--data-dir", ours="`--data-dir`", about="required; CIFAR-10 or 100 is fetched there, ImageNet has train and val (or validation)"),
    row("--num-workers", "int", ours="`--loader-threads`", about="decoding threads, 0 is 1; the original's 16 unless given: the cores here", least=0),
    row("--batch-size", "int", 32, ours="`--micro-batch-size` = value / replicas", about="samples over all replicas", least=1),
    row("--size", "lower", "20", choices=SIZES, ours="`--model`", about="x50 is ResNeXt-50"),
    row("--norm-type", "upper", "GROUP", choices=("BATCH", "GROUP", "NONE"), ours="`--norm`", about="GROUP"),
    row("--norm-groups", "int", 16, ours="`--norm-groups`", about="16", least=1),
    row("--shortcut-type", "upper", "B", choices=("A", "B", "C"), to="shortcut", about="B"),
    row("--precision", default="16", choices=("16", "32"), ours="`--precision` 16.16 or 32.32", about="16"),
    row("--prng", "flag", True, ours="`--stochastic-rounding weights`", about="on"),
    row("--no-prng", "off", True, dest="prng", ours="`--stochastic-rounding off`", about="without stochastic rounding"),
    row("--fp-exceptions", "flag", False, to="fp_exceptions", about="stop at the first value that is not finite"),
    row("--base-learning-rate", "int", -6, ours="`--learning-rate` = 2^value x batch size", about="accumulation is not counted"),
    row("--learning-rate-decay", default="1,0.1,0.01", ours="`--lr-values`", about="absolute factors"),
    row("--learning-rate-schedule", default="0.5,0.75", ours="`--lr-drops`", about="fractions of the run"),
    row("--epochs", "int", 30, ours="`--epochs`", about="30", least=1),
    row("--no-validation", "flag", False, ours="`--no-validation`", about="validates otherwise"),
    row("--valid-per-epoch", "float", 1.0, ours="`--epochs-per-validation` = 1 / value", about="1"),
    row("--steps-per-log", "int", 1, ours="`--updates-per-log` = value x batches per step", about="1", least=1),
    row("--weight-decay", "float", 0.0, ours="`--l2-regularization`", about="on all weights"),
    row("--num-ipus", "int", 1, ours="`--stages` = value / replication factor", about="automatic split points", least=1),
    row("--replication-factor", "int", 1, ours="`--replicas`", about="1", least=1),
    row("--recompute", "flag", False, ours="`--recompute` stage (pipelined) or block", about="recompute activations"),
    row("--pipeline", "flag", False, ours="`--pipeline-schedule` gpipe instead of sequential", about="stages work at the same time"),
    row("--batches-per-step", "int", 250, ours="`--updates-per-call`", about="250", least=1),
    row("--simulation", "flag", False, nothing=PLACEMENT),
    row("--gradient-accumulation-factor", "int", 1, to="accumulation", about="1", least=1),
    row("--log-dir", default="logs", ours="`--run-dir`", about="logs"),
    row("--log_dir_string", default="net", ours="`--run-dir` (end of its name)", about="net"),
    row("--get-reports", "flag", False, ours="`--profile layers`", about="profile of the run"),
    row("--help", "flag", False, ours="help", about="prints the options"),
)
TABLE = Table({"Options": ROWS})
# fmt: on
