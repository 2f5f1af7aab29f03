{{/*
Values that could not work are refused in a sentence. What the schema says of them, Helm would tell as a pattern.
*/}}
{{- define "muster.refuseValues" -}}
{{- $values := .Values }}
{{- include "muster.refuseDuration" (list "moves.settleAfter" $values.moves.settleAfter) }}
{{- include "muster.refuseDuration" (list "badNodes.window" $values.badNodes.window) }}
{{- include "muster.refuseDuration" (list "badNodes.forgiveAfter" $values.badNodes.forgiveAfter) }}
{{- if ne (toString $values.history.retention) "" }}
{{- include "muster.refuseDuration" (list "history.retention" $values.history.retention) }}
{{- end }}
{{- include "muster.refuseDigest" (list "image.digest" $values.image.digest) }}
{{- include "muster.refuseDigest" (list "runtime.image.digest" $values.runtime.image.digest) }}
{{- include "muster.refuseQuantities" (list "resources.requests" $values.resources.requests) }}
{{- include "muster.refuseQuantities" (list "resources.limits" $values.resources.limits) }}
{{- range $capacity, $hours := $values.nodeHoursBetweenFailures }}
{{- if not (has $capacity (list "on-demand" "reserved" "spot")) }}
{{- fail (printf "nodeHoursBetweenFailures: %q is no kind of capacity: write on-demand, reserved or spot" $capacity) }}
{{- end }}
{{- include "muster.refuseNotAboveZero" (list (printf "nodeHoursBetweenFailures.%s" $capacity) $hours "hours above 0, like 24 or 10.5") }}
{{- end }}
{{- range $flavour, $labels := $values.provisioning.nodeSelectors }}
{{- if not (regexMatch "^[^/]+/(on-demand|reserved|spot)$" $flavour) }}
{{- fail (printf "provisioning.nodeSelectors: %q is no GPU type with its kind of capacity: write it like H100/on-demand, H100/reserved or H100/spot" $flavour) }}
{{- end }}
{{- end }}
{{- if contains "://" $values.image.registry }}
{{- fail (printf "image.registry is %q: write a registry without the scheme, like registry.example.com:5000" $values.image.registry) }}
{{- end }}
{{- include "muster.refuseLabels" . }}
{{- include "muster.refuseLevels" $values.topology.levels }}
{{- include "muster.refusePrices" $values }}
{{- include "muster.refuseThresholds" $values.monitoring.rules.thresholds }}
{{- end }}

{{/* With --set a number with decimals comes as a string, which the schema's bounds are not for. */}}
{{- define "muster.refuseThresholds" -}}
{{- range $name, $value := pick . "utilization" "idle" "failureRate" "budget" }}
{{- if not (and (regexMatch "^[0-9]+([.][0-9]+)?([eE][-+]?[0-9]+)?$" (toString $value)) (le (float64 $value) 1.0)) }}
{{- fail (printf "monitoring.rules.thresholds.%s is %q: write a ratio from 0 to 1, like 0.5" $name (toString $value)) }}
{{- end }}
{{- end }}
{{- include "muster.refuseNotAboveZero" (list "monitoring.rules.thresholds.costSpike" .costSpike "a factor above 0, like 1.5") }}
{{- include "muster.refuseNotAboveZero" (list "monitoring.rules.thresholds.planSeconds" .planSeconds "seconds above 0, like 2 or 0.5") }}
{{- end }}

{{/* Of (list NAME VALUE WHAT): a number above 0. */}}
{{- define "muster.refuseNotAboveZero" -}}
{{- $value := index . 1 }}
{{- if not (and (regexMatch "^[0-9]+([.][0-9]+)?([eE][-+]?[0-9]+)?$" (toString $value)) (gt (float64 $value) 0.0)) }}
{{- fail (printf "%s is %q: write %s" (first .) (toString $value) (last .)) }}
{{- end }}
{{- end }}

{{/* Of (list NAME VALUE). */}}
{{- define "muster.refuseDuration" -}}
{{- $text := toString (last .) }}
{{- if not (and $text (regexMatch "^([0-9]{1,6}d)?([0-9]{1,6}h)?([0-9]{1,6}m)?([0-9]{1,6}s)?$" $text)) }}
{{- fail (printf "%s is %q: write a duration with its unit, like 45s, 10m, 12h or 1d12h" (first .) $text) }}
{{- end }}
{{- end }}

{{/* Of (list NAME VALUE). */}}
{{- define "muster.refuseDigest" -}}
{{- if not (regexMatch "^(sha256:[0-9a-f]{64})?$" (last .)) }}
{{- fail (printf "%s is %q: write sha256: and its 64 digits, as the registry has it, or leave it empty and set the tag beside it" (first .) (last .)) }}
{{- end }}
{{- end }}

{{/* Of (list NAME MAP). */}}
{{- define "muster.refuseQuantities" -}}
{{- $name := first . }}
{{- range $resource, $quantity := last . }}
{{- if not (regexMatch "^[0-9]+([.][0-9]+)?(m|k|Ki|M|Mi|G|Gi|T|Ti)?$" (toString $quantity)) }}
{{- fail (printf "%s.%s is %q: write a quantity of Kubernetes, like 500m or 2 for cpu, 512Mi or 2Gi for memory" $name $resource (toString $quantity)) }}
{{- end }}
{{- end }}
{{- end }}

{{/*
Of all objects and of the operator's pods. A label of the chart's own said twice is a key twice in one mapping: some tools
refuse it, Helm takes the last, and the Deployment would no longer find its pods, nor a second release the first.
*/}}
{{- define "muster.refuseLabels" -}}
{{- $common := .Values.commonLabels }}
{{- $own := fromYaml (include "muster.ownLabels" .) }}
{{- range $key := keys $common | sortAlpha }}
{{- if hasKey $own $key }}
{{- fail (printf "commonLabels: %s is the chart's own: leave it out, or take a key of yours" $key) }}
{{- end }}
{{- end }}
{{- range $key := keys .Values.podLabels | sortAlpha }}
{{- if hasKey $own $key }}
{{- fail (printf "podLabels: %s is the chart's own: leave it out, or take a key of yours" $key) }}
{{- else if hasKey $common $key }}
{{- fail (printf "podLabels: %s stands in commonLabels, too, which the pods have as well: leave one of them out" $key) }}
{{- end }}
{{- end }}
{{- end }}

{{/* Of the Topology's levels. */}}
{{- define "muster.refuseLevels" -}}
{{- range $index, $level := . }}
{{- if not (regexMatch "^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$" $level.name) }}
{{- fail (printf "topology.levels[%d].name is %q: write at most 63 small letters, digits and dashes, like rack" $index $level.name) }}
{{- end }}
{{- if not (regexMatch "^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$" $level.label) }}
{{- fail (printf "topology.levels[%d].label is %q: write the key of a node label, like topology.kubernetes.io/zone" $index $level.label) }}
{{- end }}
{{- end }}
{{- end }}

{{/* The regions that the public list prices are for. */}}
{{- define "muster.listRegions" -}}
aws/us-east-1, azure/eastus, coreweave, gcp/us-central1, hyperstack, lambda, nebius, oci, runpod
{{- end }}

{{/* The currencies of ISO 4217, without funds, metals and test codes. */}}
{{- define "muster.currencies" -}}
AED AFN ALL AMD AOA ARS AUD AWG AZN BAM BBD BDT BGN BHD BIF BMD BND BOB BRL BSD BTN BWP BYN BZD CAD CDF CHF CLP CNY
COP CRC CUP CVE CZK DJF DKK DOP DZD EGP ERN ETB EUR FJD FKP GBP GEL GHS GIP GMD GNF GTQ GYD HKD HNL HTG HUF IDR ILS
INR IQD IRR ISK JMD JOD JPY KES KGS KHR KMF KPW KRW KWD KYD KZT LAK LBP LKR LRD LSL LYD MAD MDL MGA MKD MMK MNT MOP
MRU MUR MVR MWK MXN MYR MZN NAD NGN NIO NOK NPR NZD OMR PAB PEN PGK PHP PKR PLN PYG QAR RON RSD RUB RWF SAR SBD SCR
SDG SEK SGD SHP SLE SOS SRD SSP STN SVC SYP SZL THB TJS TMT TND TOP TRY TTD TWD TZS UAH UGX USD UYU UZS VED VES VND
VUV WST XAF XCD XCG XOF XPF YER ZAR ZMW ZWG
{{- end }}

{{/*
Of all values. The operator leaves a price out that it can't read, and GPUs without one cost nothing: nobody would see
that before the first bill. What a catalogue says is looked at by `muster prices check`.
*/}}
{{- define "muster.refusePrices" -}}
{{- range $flavour, $price := .prices }}
{{- if not (regexMatch "^[^/]+/(on-demand|reserved|spot)$" $flavour) }}
{{- fail (printf "prices: %q is no GPU type with its kind of capacity: write it like H100/on-demand; the kinds are on-demand, reserved and spot" $flavour) }}
{{- end }}
{{- /* With --set a price with decimals comes as a string. */}}
{{- if not (and (regexMatch "^[0-9]+([.][0-9]+)?([eE][-+]?[0-9]+)?$" (toString $price)) (le (float64 $price) 1e9)) }}
{{- fail (printf "prices: %s is %q: write what one GPU costs an hour, as a number like 2.5; 0 for nothing" $flavour (toString $price)) }}
{{- end }}
{{- end }}
{{- $currency := .cost.currency }}
{{- if and $currency (not (has $currency (regexSplit "\\s+" (include "muster.currencies" .) -1))) }}
{{- fail (printf "cost.currency is %q, which is no currency: write its code of ISO 4217, three capitals like EUR" $currency) }}
{{- end }}
{{- $inDollars := or (eq $currency "USD") (and (not $currency) (not .prices)) }}
{{- $regions := splitList ", " (include "muster.listRegions" .) }}
{{- if and .cost.region .cost.listPrices $inDollars (not .cost.catalogue) (not (has .cost.region $regions)) }}
{{- fail (printf "cost.region: no public list price is for %q, but for %s: take one of these, give your own prices in cost.catalogue, or set cost.listPrices=false and give them in prices" .cost.region (include "muster.listRegions" .)) }}
{{- end }}
{{- end }}
