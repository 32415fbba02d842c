"""Uses the client that openapi-python-client generated, against a running service: generated_client.py FOLDER URL"""
import importlib
import pkgutil
import sys

folder, url = sys.argv[1:]
sys.path.insert(0, folder)
package = importlib.import_module("python")
modules = [module.name for module in pkgutil.walk_packages(package.__path__, "python.")]
for module in modules:
    importlib.import_module(module)

from python import Client  # noqa: E402
from python.api.fits import create_fit, get_fit  # noqa: E402
from python.api.recommendations import list_recommendations  # noqa: E402
from python.models import Request  # noqa: E402

client = Client(base_url=url, timeout=60)
request = Request.from_dict({"model": {"preset": "resnet18"}, "device": "sim:h200", "memory_limit": "12GiB"})
fit = create_fit.sync(client=client, body=request, prefer="wait=30")
again = get_fit.sync(fit.id, client=client)
listed = list_recommendations.sync(client=client, limit=1)
assert again.result.recommendation.micro_batch > 0, again
assert listed.items[0].micro_batch == again.result.recommendation.micro_batch, listed
print(f"{len(modules)} modules imported; micro-batch {listed.items[0].micro_batch}")
