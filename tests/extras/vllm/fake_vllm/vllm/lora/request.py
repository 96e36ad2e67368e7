class LoRARequest:
    def __init__(self, *arguments: object, **options: object) -> None:
        pass
