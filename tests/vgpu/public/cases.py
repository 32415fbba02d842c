"""cases(DATA): training scripts of public repositories: the folder in which each runs, the optimizer steps, the command.

Recorded at these commits:
pytorch/examples 77f55b912142, karpathy/nanoGPT 3adf61e154c3, karpathy/minGPT 37baab71b9ab, karpathy/makemore 988aa59e4d8f, karpathy/build-nanogpt 6104ab1b5392, kuangliu/pytorch-cifar 49b7aa97b0c1,
weiaicunzai/pytorch-cifar100 11d8418f415b, akamaster/pytorch_resnet_cifar10 d5489e8995e8, xternalz/WideResNet-pytorch 1171f93d5a9a, clovaai/CutMix-PyTorch 2d8eb68faff7, facebookresearch/mixup-cifar10 eaff31ab397a,
milesial/Pytorch-UNet 21d7850f2af3, lucidrains/denoising-diffusion-pytorch faed4db28e72, rosinality/vq-vae-2-pytorch ef5f67c46f93, eriklindernoren/PyTorch-GAN 36d3c77e5ff2, facebookresearch/dino 7c446df5b9f4,
facebookresearch/vicreg 4e12602fd495, HobbitLong/SupContrast 66a8fe53880d, sthalles/SimCLR 1848fc934ad8, zhouhaoyi/Informer2020 29f2a739226a, thuml/Time-Series-Library 4e938a176710, huggingface/pytorch-image-models (1.0.29.dev0).
"""
import os

HERE = os.path.dirname(os.path.abspath(__file__))


def cases(data):
    c = {"ex_" + n: (f"examples/{n}", 4, f"main.py {more}") for n, more in (("mnist", "--batch-size 64"), ("vae", ""), ("siamese_network", ""), ("mnist_rnn", "--accel"), ("mnist_forward_forward", ""))}
    c["ex_dcgan"] = "examples/dcgan", 6, "main.py --dataset fake --accel --outf ."
    c["ex_style"] = "examples/fast_neural_style", 4, f"neural_style/neural_style.py train --dataset {data}/folder/train --style-image images/style-images/candy.jpg --save-model-dir . --epochs 1 --accel"
    for model, batch in (("resnet18", 64), ("resnet50", 32), ("mobilenet_v2", 64), ("densenet121", 32), ("efficientnet_b0", 32), ("vit_b_16", 16), ("convnext_tiny", 16), ("swin_t", 16), ("regnet_y_400mf", 64), ("shufflenet_v2_x1_0", 64), ("googlenet", 64),
                         ("vgg16_bn", 16), ("alexnet", 128), ("squeezenet1_1", 64), ("mnasnet1_0", 64), ("maxvit_t", 8), ("resnext50_32x4d", 32), ("wide_resnet50_2", 16), ("efficientnet_v2_s", 16), ("swin_v2_t", 8)):
        c["imagenet_" + model] = "examples/imagenet", 4, f"main.py --dummy -a {model} -b {batch} -j 2 --epochs 1"
    for model in ("LSTM", "GRU", "RNN_TANH", "Transformer"): c["wlm_" + model] = "examples/word_language_model", 4, f"main.py --data {data}/words --accel --use-optimizer --model {model} --emsize 256 --nhid 256"
    for name in "acgan aae began bgan cgan dcgan dragan ebgan gan infogan lsgan relativistic_gan sgan softmax_gan wgan wgan_div wgan_gp".split(): c["gan_" + name] = f"PyTorch-GAN/implementations/{name}", 6, f"{name}.py --n_epochs 1"
    c["nanogpt"] = "nanoGPT", 4, "train.py config/train_shakespeare_char.py --dataset=chars --compile=False --eval_iters=2 --always_save_checkpoint=False"
    c["nanogpt_compile"] = "nanoGPT", 4, "train.py config/train_shakespeare_char.py --dataset=chars --compile=True --eval_iters=2"
    c["nanogpt_gpt2"] = "nanoGPT", 3, "train.py --dataset=chars --compile=False --eval_iters=1 --batch_size=4 --gradient_accumulation_steps=2"
    c["mingpt_adder"] = "minGPT/projects/adder", 4, "adder.py"
    for kind in "transformer gru rnn mlp bow bigram".split(): c["makemore_" + kind] = "makemore", 6, f"makemore.py -i names.txt --device cuda --type {kind} -o out --max-steps 10 --num-workers 0"
    c["build_nanogpt"] = "build-nanogpt", 2, "train_gpt2.py"
    c["cifar10"] = "pytorch-cifar", 4, "main.py"
    for net in "vgg16 googlenet inceptionv3 inceptionv4 xception resnet50 resnext50 densenet121 shufflenetv2 squeezenet mobilenetv2 nasnet attention56 seresnet50 preactresnet18 stochasticdepth18 wideresnet".split():
        c["cifar100_" + net] = "pytorch-cifar100", 3, f"train.py -net {net} -gpu -b 64"
    for name, more in (("resnet20", "--arch resnet20"), ("resnet110", "--arch resnet110"), ("half", "--arch resnet56 --half")): c["rc10_" + name] = "pytorch_resnet_cifar10", 4, f"trainer.py {more} -j 2 --epochs 1 --save-dir ."
    c["wrn"] = "WideResNet-pytorch", 3, "train.py --dataset cifar10 --layers 16 --widen-factor 4 -b 64 --epochs 1"
    c["mixup"] = "mixup-cifar10", 3, "train.py --lr=0.1 --seed=20170922 --decay=1e-4 --epoch 1 --batch-size 64"
    c["cutmix"] = "CutMix-PyTorch", 3, "train.py --net_type pyramidnet --dataset cifar100 --depth 65 --alpha 200 --batch_size 64 --epochs 1 --beta 1.0 --cutmix_prob 1.0 -j 2 --no-verbose"
    c["cutmix_resnet"] = "CutMix-PyTorch", 3, "train.py --net_type resnet --dataset cifar10 --depth 50 --batch_size 64 --epochs 1 --beta 1.0 --cutmix_prob 0.5 -j 2 --no-verbose"
    c["unet"] = "Pytorch-UNet", 3, "train.py --batch-size 2 --scale 0.5"
    c["unet_amp"] = "Pytorch-UNet", 3, "train.py --batch-size 2 --scale 0.5 --amp --bilinear"
    c["ddpm_lucid"] = "denoising-diffusion-pytorch", 4, f"{HERE}/ddpm.py {data}/flat 1"
    c["ddpm_lucid_fp32"] = "denoising-diffusion-pytorch", 4, f"{HERE}/ddpm.py {data}/flat 0"
    c["vqvae2"] = "vq-vae-2-pytorch", 3, f"train_vqvae.py --size 128 --n_gpu 1 --epoch 1 {data}/folder/train"
    c["dino_vit"] = "dino", 3, f"main_dino.py --arch vit_tiny --data_path {data}/folder/train --batch_size_per_gpu 8 --num_workers 2 --out_dim 8192 --epochs 100 --output_dir ."
    c["dino_resnet"] = "dino", 3, f"main_dino.py --arch resnet50 --data_path {data}/folder/train --batch_size_per_gpu 4 --num_workers 2 --out_dim 4096 --optimizer sgd --use_fp16 false --epochs 100 --output_dir ."
    c["vicreg"] = "vicreg", 3, f"main_vicreg.py --data-dir {data}/folder --exp-dir exp --arch resnet50 --epochs 1 --batch-size 16 --base-lr 0.3 --mlp 2048-2048-2048 --num-workers 2"
    c["supcon"] = "SupContrast", 3, "main_supcon.py --batch_size 64 --num_workers 2 --model resnet18 --cosine"
    c["supcon_ce"] = "SupContrast", 3, "main_ce.py --batch_size 64 --num_workers 2 --model resnet50"
    c["simclr"] = "SimCLR", 4, f"run.py -data {data} -dataset-name cifar10 --epochs 1 -b 64 -j 2"
    c["simclr_fp16"] = "SimCLR", 4, f"run.py -data {data} -dataset-name cifar10 --epochs 1 -b 64 -j 2 --fp16-precision -a resnet50"
    for name, more in (("informer", "--model informer --attn prob"), ("informerstack", "--model informerstack --attn prob"), ("informer_full_amp", "--model informer --attn full --use_amp")):
        c[name] = "Informer2020", 4, f"main_informer.py {more} --data ETTh1 --root_path {data}/ETT/ --itr 1 --train_epochs 1"
    for model in "Autoformer TimesNet PatchTST DLinear iTransformer FEDformer Nonstationary_Transformer Crossformer LightTS TiDE Pyraformer SegRNN TSMixer Informer Transformer TimeXer".split():
        c["ts_" + model] = "Time-Series-Library", 3, (f"run.py --task_name long_term_forecast --is_training 1 --model_id x --model {model} --data ETTh1 --root_path {data}/ETT/ --data_path ETTh1.csv --features M --seq_len 96 --label_len 48 --pred_len 96 --e_layers 2 "
                                                     "--d_layers 1 --enc_in 7 --dec_in 7 --c_out 7 --d_model 128 --d_ff 256 --itr 1 --train_epochs 1 --num_workers 0 --expand 2")
    for model, more in (("resnet26d", "--opt lamb --bce-loss --mixup 0.2"), ("mobilenetv3_large_100", "--amp --model-ema"), ("efficientnet_b0", "--amp --amp-dtype bfloat16 --drop-path 0.2 --opt rmsproptf"), ("convnext_atto", "--opt adamw --drop-path 0.1 --channels-last"),
                        ("vit_tiny_patch16_224", "--opt adamw --amp --smoothing 0.1 --mixup 0.8 --cutmix 1.0"), ("swin_tiny_patch4_window7_224", "--opt adamw --grad-accum-steps 2"), ("maxvit_nano_rw_256", "--opt adamw --amp"), ("resnet50", "--opt sgd --channels-last --amp --sync-bn"),
                        ("deit3_small_patch16_224", "--opt lion --grad-checkpointing"), ("eva02_tiny_patch14_224", "--opt muon"), ("mixer_s16_224", "--opt adafactor"), ("nfnet_f0", "--clip-grad 0.02 --clip-mode agc --opt sgd"), ("coatnet_nano_rw_224", "--opt adan"),
                        ("regnetz_b16", "--opt nadamw"), ("fastvit_t8", "--opt madgradw"), ("efficientvit_b0", "--opt adabelief"), ("xcit_tiny_12_p16_224", "--opt lars"), ("hiera_tiny_224", "--opt adopt")):
        c["timm_" + model] = "pytorch-image-models", 3 + ("accum" not in more), f"train.py --data-dir {data}/folder --num-classes 2 -b 16 -j 2 --epochs 1 --checkpoint-hist 1 --output . --model {model} {more}"
    return c
