# mypy: ignore-errors
# ruff: noqa: N806
"""The cells of examples/xgboost/distributed-training/xgboost-distributed.ipynb.

From kubeflow/trainer 8c0f5059bd51 (Apache License 2.0), without those that only look at the job.
"""

from kubeflow.trainer import CustomTrainer, TrainerClient


def xgboost_train_classification():
    """Distributed XGBoost training function using the modern Collective API.

    DMLC_* env vars are injected by the Kubeflow Trainer XGBoost plugin:
      - DMLC_TRACKER_URI:  DNS name of the rank-0 pod running the tracker
      - DMLC_TRACKER_PORT: Port for tracker communication
      - DMLC_TASK_ID:      Worker rank (0, 1, 2, ...)
      - DMLC_NUM_WORKER:   Total number of workers
    """
    import os

    import xgboost as xgb
    from sklearn.datasets import make_classification
    from sklearn.metrics import accuracy_score
    from sklearn.model_selection import train_test_split
    from xgboost import collective as coll
    from xgboost.tracker import RabitTracker

    # Read injected environment variables.
    rank = int(os.environ["DMLC_TASK_ID"])
    world_size = int(os.environ["DMLC_NUM_WORKER"])
    tracker_uri = os.environ["DMLC_TRACKER_URI"]
    tracker_port = int(os.environ["DMLC_TRACKER_PORT"])

    print(f"Worker {rank}/{world_size} starting...")
    print(f"Tracker: {tracker_uri}:{tracker_port}")

    # Rank 0 starts the Rabit tracker (required for coordination).
    tracker = None
    if rank == 0:
        tracker = RabitTracker(host_ip="0.0.0.0", n_workers=world_size, port=tracker_port)
        tracker.start()
        print(f"Tracker started on {tracker_uri}:{tracker_port}")

    # All workers connect to the tracker via the Collective communicator.
    with coll.CommunicatorContext(
        dmlc_tracker_uri=tracker_uri,
        dmlc_tracker_port=tracker_port,
        dmlc_task_id=str(rank),
    ):
        print(f"Worker {coll.get_rank()}/{coll.get_world_size()} connected")

        # Generate synthetic classification data.
        # Each worker generates a different shard using rank-based random seed.
        X, y = make_classification(
            n_samples=10000,
            n_features=20,
            n_informative=10,
            n_classes=2,
            random_state=42 + rank,
        )
        X_train, X_valid, y_train, y_valid = train_test_split(
            X,
            y,
            test_size=0.2,
            random_state=42,
        )

        # NOTE: QuantileDMatrix construction MUST be inside the communicator context
        # because it involves cross-worker synchronization for quantization.
        dtrain = xgb.QuantileDMatrix(X_train, label=y_train)
        dvalid = xgb.QuantileDMatrix(X_valid, label=y_valid, ref=dtrain)

        # Training parameters (for GPU training, add device="cuda").
        params = {
            "objective": "binary:logistic",
            "tree_method": "hist",
            "max_depth": 6,
            "eta": 0.1,
            "eval_metric": "logloss",
        }

        # Distributed training - collective operations synchronize gradients.
        model = xgb.train(
            params,
            dtrain,
            num_boost_round=50,
            evals=[(dvalid, "validation")],
            verbose_eval=10,
        )

        # Evaluate on validation set.
        preds = model.predict(dvalid)
        predictions = [1 if p > 0.5 else 0 for p in preds]
        accuracy = accuracy_score(y_valid, predictions)
        print(f"Worker {rank} - Validation Accuracy: {accuracy:.4f}")

        # Save model from rank 0 only.
        if coll.get_rank() == 0:
            model.save_model("/workspace/xgboost_model.json")
            print("Model saved to /workspace/xgboost_model.json")

    # Wait for tracker to finish (rank 0 only).
    if tracker is not None:
        tracker.wait_for()

    print(f"Worker {rank}: Training complete!")


client = TrainerClient()
num_cpu = 3
num_nodes = 3
job_name = client.train(
    trainer=CustomTrainer(
        func=xgboost_train_classification,
        num_nodes=num_nodes,
        resources_per_node={"cpu": num_cpu},
    ),
    runtime="xgboost-distributed",
)
client.wait_for_job_status(name=job_name, status={"Running"})
for i in range(num_nodes):
    print("\n".join(client.get_job_logs(name=job_name, follow=True, step=f"node-{i}")))
client.wait_for_job_status(name=job_name, timeout=20)
