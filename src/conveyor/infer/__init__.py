"""From a trained model to numbers: engines, their choice, throughput and latency, export."""
