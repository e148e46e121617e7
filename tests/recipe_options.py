"""The options of today's recipes, labels and data: what each of them must have is tested in more than one place."""

OPTIONS = {
    "augmentation": (
        "augment", "augment_magnitude", "augment_operations", "color_jitter", "random_erasing", "repeated_augmentation",
        "mixup_alpha", "cutmix_lambda", "cutmix_lambda_high", "cutmix_skip_probability", "mix_switch",
        "progressive_image_size",
    ),
    "losses": (
        "loss", "bce_threshold", "focal_gamma", "class_weights", "balanced_sampling", "label_smoothing", "teacher",
        "distillation", "teacher_temperature", "teacher_share",
    ),
    "labels": ("task",),
    "regularisation": ("survival", "layer_decay", "ema_decay", "ema_warmup", "optimizer", "optimizer_arguments"),
    "data": ("data_dir", "hold_out", "folds", "fold", "group_by", "exclude_images"),
    "metrics": ("best_by", "answers"),
}  # fmt: skip
