// Reads {"secret", "headers", "body"} from standard input and prints the type of the event if the signature is right.
import { readFileSync } from "node:fs";
import { Webhook } from "standardwebhooks";

const { secret, headers, body } = JSON.parse(readFileSync(0, "utf8"));
console.log(new Webhook(secret).verify(body, headers).type);
